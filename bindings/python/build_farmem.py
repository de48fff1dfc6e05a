"""Builds the wheel of farmem: pip calls it, and nothing has to be downloaded for that but what cargo needs.

The library is built by cargo from the tree around this file, unless FARMEM_STORE_LIBRARY names one that is built already.
It is loaded by ctypes, so one wheel serves every version of Python.
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def _version():
    return re.search(r'^version = "([^"]+)"', (HERE / "pyproject.toml").read_text(), re.M).group(1)


def _library():
    given = os.environ.get("FARMEM_STORE_LIBRARY")
    if given:
        return pathlib.Path(given)
    if not (ROOT / "Cargo.toml").exists():
        raise SystemExit("farmem is built from its whole tree: pip install PATH-TO-FARMEM/bindings/python")
    cargo = os.environ.get("CARGO", "cargo")
    try:
        subprocess.run([cargo, "build", "--release", "--locked", "-p", "farmem-store"], cwd=ROOT, check=True)
        about = subprocess.run(
            [cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    except FileNotFoundError:
        raise SystemExit("there is no cargo: install a Rust toolchain (https://rustup.rs), or name a library that is built "
                         "already by FARMEM_STORE_LIBRARY") from None
    target = re.search(r'"target_directory":"([^"]*)"', about).group(1)
    return pathlib.Path(target) / "release" / "libfarmem_store.so"


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version, tag = _version(), "py3-none-linux_x86_64"
    about = f"farmem-{version}.dist-info"
    files = {f"farmem/{path.name}": path.read_bytes() for path in sorted((HERE / "farmem").glob("*.py"))}
    files["farmem/libfarmem_store.so"] = _library().read_bytes()
    files[f"{about}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: farmem\nVersion: {version}\n"
        "Summary: farmem for Python: a key-value store, vectors and tables in other machines' memory, and hints\n"
        "License: MIT OR Apache-2.0\nRequires-Python: >=3.8\n"
    ).encode()
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: farmem\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    wheel = f"farmem-{version}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("farmem has no source distribution of its Python part alone: install it from its tree")
