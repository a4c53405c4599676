__version__ = "0.1.0"

import lazy_loader as _lazy

# Names and the modules they live in stand in __init__.pyi, which editors read too; a module is imported when
# a name of it is first used.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
