"""`fermata serve`: the whole system on this machine, until Ctrl-C."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from deployments.config import load_config
from profiles.errors import ConfigError

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file; samples are in deployments/.")
]
ROOT = Path(__file__).parent.parent


def serve(config: ConfigPath = ROOT / "deployments/local.yaml") -> None:
    """Serve what a configuration names, on Ray Serve, until Ctrl-C.

    The same as `serve run deployments.app:build config=CONFIG`, with the configuration checked
    first and Ray's workers at full priority.
    """
    loaded = load_config(config)
    command = shutil.which("serve", path=os.fspath(Path(sys.executable).parent))
    if command is None:
        raise ConfigError("Ray Serve is not installed; pip install 'fermata[serve]'")
    frontend = loaded.frontend
    names = ", ".join(each.name for each in loaded.applications)
    print(f"serving {names}: gRPC {frontend.host}:{frontend.grpc_port}, ", end="")
    print(f"REST {frontend.host}:{frontend.http_port}, status http://127.0.0.1:8000/status")
    sys.stdout.flush()
    path = os.pathsep.join(filter(None, (os.fspath(ROOT), os.environ.get("PYTHONPATH"))))
    # Ray starts its workers at niceness 15 otherwise, and they would yield to everybody.
    environment = {**os.environ, "RAY_worker_niceness": "0", "PYTHONPATH": path}
    arguments = ["serve", "run", "deployments.app:build", f"config={config.resolve()}"]
    os.execve(command, arguments, environment)
