"""JSON files that people and git read: a row per line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """A record; None where there is none."""
    return json.loads(path.read_text()) if path.is_file() else None


def write_json(path: Path, content: Any) -> None:
    """Writes a record: one row per line, so that a change shows as the rows that changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(_layout(content) + "\n")
    scratch.replace(path)


def update_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Writes what `change` makes of a record, {} where there is none. Other processes wait
    meanwhile, so that runs on several GPUs may write into one folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        write_json(path, change(read_json(path) or {}))
    finally:
        os.close(folder)


def _layout(content: Any, indent: str = "") -> str:
    deeper = indent + "  "
    if isinstance(content, dict) and content:
        body = ",\n".join(
            f"{deeper}{json.dumps(key)}: {_layout(value, deeper)}" for key, value in content.items()
        )
        # A flat dictionary below the top level is one line: a row.
        flat = not any(isinstance(value, (dict, list)) for value in content.values())
        return json.dumps(content) if flat and len(indent) > 2 else f"{{\n{body}\n{indent}}}"
    if isinstance(content, list) and any(isinstance(item, dict) for item in content):
        body = ",\n".join(f"{deeper}{json.dumps(item)}" for item in content)
        return f"[\n{body}\n{indent}]"
    return json.dumps(content)
