"""Every file that the package writes goes through the one writer of `ragbench.base.files`."""

import ast
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import ragbench
from ragbench.base.errors import StoreError
from ragbench.base.files import whole_file, whole_folder, write_atomic

PACKAGE = Path(ragbench.__file__).parent
METHODS = {
    "write_text",
    "write_bytes",
    "to_parquet",
    "to_csv",
    "to_json",
    "to_excel",
    "to_feather",
    "to_pickle",
    "savefig",
    "tofile",
    "save_pretrained",
    "rename",
    "renames",
    "savez",
    "savez_compressed",
    "savetxt",
    "save_lz4",
    "copyfile",
    "copy2",
    "copytree",
    "move",
}
OF_MODULES = {
    ("np", "save"),
    ("json", "dump"),
    ("faiss", "write_index"),
    ("onnx", "export"),
    ("os", "replace"),
    ("shutil", "copy"),
    ("os", "rename"),
}
# (module, function): writers that are given a path inside a block of the one writer, or that write no file
GIVEN = {
    ("store/artifacts.py", "write_files"),
    ("embed/onnx_encoder.py", "write_onnx"),
    ("embed/onnx_encoder.py", "_export"),  # given a path
    ("plot/chart.py", "svg"),
    ("plot/chart.py", "save"),
    ("index/faiss_base.py", "index_bytes"),
    ("base/worker_processes.py", "serve"),  # to memory, to a pipe
    ("ingest/web.py", "_load_file"),  # to a temporary folder
    ("store/artifacts.py", "_publish"),
    ("store/artifacts.py", "clear"),
    ("testing/conformance.py", "another"),  # dataclasses.replace
    ("testing/loader_suite.py", "copy"),
    ("testing/loader_suite.py", "refuses"),
    ("testing/loader_suite.py", "works_in_load_corpus"),  # to a temporary folder
    ("knowledge/store_view.py", "_written"),
    ("knowledge/word_files.py", "write_words"),  # into a folder of the one writer
    ("knowledge/stored_parts.py", "fitted_text"),  # to memory
    ("embed/vector_cache.py", "rescue"),  # move what is damaged aside, open a lock
}


def calls(tree: ast.AST, owner: str = "", inside: bool = False):
    """Every call, with the name of the outermost function around it and whether it stands in a block of the
    writer."""
    for node in ast.iter_child_nodes(tree):
        name = owner or (node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "")
        covered = (
            inside
            or isinstance(node, ast.With)
            and any(
                isinstance(i.context_expr, ast.Call)
                and getattr(i.context_expr.func, "id", "") in ("whole_file", "whole_folder")
                for i in node.items
            )
        )
        if isinstance(node, ast.Call):
            yield node, name, inside
        yield from calls(node, name, covered)


def writes(call: ast.Call) -> bool:
    """Whether a call looks like one that writes a file."""
    f = call.func
    if isinstance(f, ast.Name):
        mode = next(
            (k.value for k in call.keywords if k.arg == "mode"), call.args[1] if len(call.args) > 1 else None
        )
        if f.id in ("open", "fdopen"):
            return isinstance(mode, ast.Constant) and bool(set("wax+") & set(str(mode.value)))
        return f.id in METHODS
    if not isinstance(f, ast.Attribute):
        return False
    if f.attr in METHODS:
        return not (f.attr == "rename" and not call.args) and not (
            f.attr in ("to_csv", "to_json") and not call.args
        )  # without a path they return a text
    if f.attr == "open":
        return any(
            isinstance(a, ast.Constant)
            and isinstance(a.value, str)
            and a.value[:1] in "wax"
            and len(a.value) < 4
            for a in call.args
        )
    if f.attr == "replace":
        return (
            len(call.args) == 1 and not call.keywords or getattr(f.value, "id", "") == "os"
        )  # of a path; that of a text has two
    if f.attr in ("fdopen",):
        return any(
            isinstance(a, ast.Constant) and isinstance(a.value, str) and bool(set("wax+") & set(a.value))
            for a in call.args
        )
    owner = f.value.attr if isinstance(f.value, ast.Attribute) else getattr(f.value, "id", "")
    return (owner, f.attr) in OF_MODULES


def strays(source: str, module: str) -> list[str]:
    return [
        f"{module}:{call.lineno} {ast.unparse(call)[:90]}"
        for call, owner, inside in calls(ast.parse(source))
        if writes(call) and not inside and (module, owner) not in GIVEN
    ]


def test_every_writer_goes_through_the_one_writer():
    bad = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module != "base/files.py":
            bad += strays(path.read_text(encoding="utf-8"), module)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    "source",
    [
        "Path(p).write_text('x')",
        "open(p, 'w')",
        "open(p, mode='ab')",
        "p.open('wb')",
        "np.save(p, x)",
        "df.to_parquet(p)",
        "df.to_csv(p)",
        "fig.savefig(p)",
        "json.dump(x, f)",
        "a.replace(b)",
        "os.replace(a, b)",
        "torch.onnx.export(m, x, p)",
        "save_lz4(x, p)",
    ],
)
def test_the_search_knows_a_writer(source):
    assert strays(f"def f():\n    {source}", "x.py")
    assert not strays(f"def f():\n    with whole_file(p) as new: {source}", "x.py")


@pytest.mark.parametrize(
    "source",
    ["text.replace('a', 'b')", "open(p)", "open(p, 'rb')", "df.to_latex()", "dataclasses.replace(x, a=1)"],
)
def test_the_search_leaves_others_alone(source):
    assert not strays(f"def f(): {source}", "x.py")


# --- what a failing disk is called --------------------------------------------------------------------------


def test_a_full_disk(small_disk):
    np = pytest.importorskip("numpy")
    write_atomic(small_disk / "table.csv", "old")
    big = np.zeros(1 << 19)

    def numpy_writes():
        with whole_file(small_disk / "table.csv") as new, open(new, "wb") as f:
            np.save(f, big)

    def a_library_hides_it():
        with whole_file(small_disk / "table.csv") as new:
            try:
                new.write_bytes(bytes(1 << 21))
            except OSError:
                raise RuntimeError("write error in file") from None

    def a_folder():
        with whole_folder(small_disk / "folder") as new:
            np.save(new / "x.npy", big)

    for write in (
        numpy_writes,
        a_library_hides_it,
        a_folder,
        lambda: write_atomic(small_disk / "table.csv", bytes(1 << 21)),
    ):
        with pytest.raises(StoreError, match="the disk is full") as said:
            write()
        assert "elete" not in str(said.value)
    assert [p.name for p in small_disk.iterdir()] == ["table.csv"]
    assert (small_disk / "table.csv").read_text() == "old"


def test_a_read_only_file_system(small_disk):
    write_atomic(small_disk / "table.csv", "old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="can only be read"):
        write_atomic(small_disk / "table.csv", "new")
    with pytest.raises(StoreError, match="can only be read"), whole_folder(small_disk / "folder"):
        pass
    assert (small_disk / "table.csv").read_text() == "old"


def test_a_limit_on_the_size_of_files(tmp_path):
    code = (
        f"from ragbench.base.files import write_atomic; write_atomic({str(tmp_path / 'x')!r}, bytes(1 << 20))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert "StoreError" in done.stderr and "larger than the system allows" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOLCK]
)
def test_each_trouble_is_one_error(tmp_path, monkeypatch, number):
    path = write_atomic(tmp_path / "report.html", "old")

    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(StoreError) as said:
        write_atomic(path, "new")
    assert str(path) in str(said.value) and "elete" not in str(said.value)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_an_error_about_another_file_keeps_its_own_name(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "x"):
        open(tmp_path / "absent" / "y")


def test_a_link_is_written_through_and_permissions_stay(tmp_path):
    real = write_atomic(tmp_path / "real.csv", "old")
    real.chmod(0o640)
    (tmp_path / "link.csv").symlink_to(real)
    write_atomic(tmp_path / "link.csv", "new")
    assert (
        real.read_text() == "new"
        and (tmp_path / "link.csv").is_symlink()
        and real.stat().st_mode & 0o777 == 0o640
    )


def test_a_device_is_written_to_not_replaced():
    assert write_atomic("/dev/null", "x").is_char_device()
    with pytest.raises(StoreError, match="the disk is full"):
        write_atomic("/dev/full", "x")
