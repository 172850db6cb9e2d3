"""What `patch` and `unpatch` did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Replaced:
    """A module that is served here."""

    name: str  #: in the model
    module: str  #: its class
    kind: str  #: the option of `patch`
    function: str  #: of warpsmith


@dataclass(frozen=True)
class Kept:
    """A module that was left as it was."""

    name: str  #: in the model
    module: str  #: its class
    why: str


@dataclass(frozen=True)
class Restored:
    """A module that has its own class again, or a model its own attention or loss."""

    name: str  #: in the model
    module: str  #: its class
    kind: str = ""  #: "attention" or "loss" of a model as a whole


@dataclass
class Report:
    """What `patch` replaced and what it left, and why; or what `unpatch` gave back. Printed, a line
    for all of a class; as a bool, whether anything was replaced; `functions()` is how many modules
    each function serves.

    Args:
        replaced: modules that are served here, each with its name, class, kind and function.
        left: modules that were left as they were, each with its name, class and the reason.
        compiled: kinds that are not served where the model is compiled, and why.
        restored: of `unpatch`, what is as it was before `patch`; None of `patch`.
    """

    replaced: list[Replaced] = field(default_factory=list)
    left: list[Kept] = field(default_factory=list)
    compiled: dict[str, str] = field(default_factory=dict)
    restored: list[Restored] | None = None

    def functions(self) -> dict[str, int]:
        """How many modules each function serves."""
        return dict(Counter(r.function for r in self.replaced))

    def __bool__(self) -> bool:
        """Whether anything was replaced."""
        return bool(self.replaced)

    def __str__(self) -> str:
        served = Counter((r.module, r.function) for r in self.replaced)
        kept = Counter((k.module, k.why) for k in self.left)
        lines = [f"{n:5} {module} -> {function}" for (module, function), n in served.items()]
        back = Counter((r.module, r.kind) for r in self.restored or ())
        lines += [f"{n:5} {m} restored{k and f': {k}'}" for (m, k), n in back.items()]
        done = "replaced" if self.restored is None else "restored"
        lines = lines or [f"nothing was {done}"]
        lines += [f"{n:5} {module} left: {why}" for (module, why), n in kept.items()]
        lines += [f"      {kind}: {why}" for kind, why in self.compiled.items()]
        return "\n".join(lines)
