"""Conformance suites for components of one's own, and doubles for tests: servers on the loopback interface,
toy
vectors, toy results. Nothing in the package imports it."""

import lazy_loader as _lazy

# Names and the modules they live in stand in __init__.pyi, which editors read too; a module is imported when
# a
# name of it is first used.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
