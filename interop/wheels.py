"""Single files out of other projects' wheels, which need little of what their projects need."""

import importlib.util
import pathlib
import subprocess
import sys
import zipfile

WHEELS = {
    "sglang": ("sglang==0.5.12", "sglang/srt/observability/forward_pass_metrics.py"),
    "dynamo": ("ai-dynamo==1.6.1", "dynamo/common/forward_pass_metrics.py"),
}
# Beside the checks' own folders, which are emptied before each run.
FOLDER = pathlib.Path("..").resolve() / "wheels"


def wheel(package):
    """A package's wheel, without what it depends on."""
    folder = FOLDER / package
    if not list(folder.glob("*.whl")):
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--dest", str(folder), package], check=True
        )
    [found] = folder.glob("*.whl")
    return zipfile.ZipFile(found)


def module(name):
    """A project's forward_pass_metrics.py, loaded by itself."""
    package, member = WHEELS[name]
    path = pathlib.Path(f"{name}_forward_pass_metrics.py")
    path.write_bytes(wheel(package).read(member))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded
