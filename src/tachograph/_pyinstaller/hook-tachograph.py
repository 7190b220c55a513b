"""List the modules and files for PyInstaller: Tachograph loads most modules by name, so no import shows them."""
# ruff: noqa: N999 - PyInstaller finds a hook by its file's name

from __future__ import annotations

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata  # type: ignore[import-untyped,unused-ignore]

hiddenimports = collect_submodules("tachograph", filter=lambda name: not name.startswith("tachograph._pyinstaller"))
datas = collect_data_files("tachograph") + copy_metadata("tachograph")
# A program that uses one of these imports it by itself; otherwise all that is installed would come into the build.
excludedimports = [
    *("accelerate", "lightning", "mlflow", "pytorch_lightning", "ray", "tensorboard", "tensorboardX", "torch"),
    *("torchtitan", "trackio", "transformers", "wandb"),
    *("IPython", "ipywidgets", "matplotlib", "numpy", "pandas", "pyarrow"),
]
