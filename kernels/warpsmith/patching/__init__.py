"""A model that exists, with what it computes served here: `warpsmith.patch`, and back.

The modules of a model exchange their class for a subclass of it with another `forward`; nothing
else of them changes. Which class is served how is data: `norms`, `mlps`, `blocks` and `rope` say
what stands for what, `architectures` which class of which model it holds for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable
from typing import Any

import torch
from torch.nn import Module

from warpsmith.patching import architectures, attention, compiled, losses, mlps, reasons, swap
from warpsmith.patching import norms as norm_rules
from warpsmith.patching.report import Kept, Replaced, Report, Restored
from warpsmith.patching.rules import Left, Rule

__all__ = ["Kept", "Replaced", "Report", "Restored", "patch", "unpatch"]

#: PyTorch's modules that have a rule, by type.
_TORCH: dict[type[Module], Rule] = {
    **norm_rules.TORCH,
    torch.nn.CrossEntropyLoss: losses.CROSS_ENTROPY,
}


def _has_rule(cls: type[Any]) -> bool:
    return cls in _TORCH or architectures.of_type(cls) is not None


def _torch_rule(module: Module) -> Rule | None:
    """The rule of a module of PyTorch, or of the activations of transformers."""
    cls = type(module)
    for known, rule in _TORCH.items():
        if isinstance(module, known) and cls.forward is known.forward:
            return rule
    if type(module) is torch.nn.Linear:
        return mlps.LINEAR
    return mlps.ACTIVATION if mlps.activation_of(module) is not None else None


def patch(
    model: Module,
    *,
    norms: bool = True,
    residuals: bool = True,
    gates: bool = True,
    activations: bool = True,
    rope: bool = True,
    attention: bool = True,
    loss: bool = True,
    fused_loss: bool = False,
    linear: bool = False,
) -> Report:
    """Has what a model computes served by this library, where that is known to give the same.

    Modules keep their parameters, names, hooks and state dict; only their class is exchanged for a
    subclass of it. PyTorch's norms and activations are known by their type; the models of
    transformers that `warpsmith.patching.architectures` lists, and the blocks of diffusers, by
    their classes. A module whose `forward` reads anything else than what is known, or has been
    replaced, is left. `unpatch` undoes it all. Patching again adds what is not served yet.

    In f32, f16 and bf16 every function rounds once, where transformers often rounds in between;
    what a kernel does not take (another dtype, a weight of another dtype than its input outside of
    autocast) goes through the module's own forward.

    Kinds that torch.compile does better in a whole model, on the record of the GPU, go through the
    module's own forward where the model is compiled; the report names them.

    Attention and the loss belong to a model of transformers as a whole. Its attention is chosen in
    its `config`, which models made from the same `config` share.

    Args:
        model: changed in place; any module, of which parts may be known.
        norms: RMS norms, layer norms, group norms.
        residuals: the sum of a branch and the residual stream together with the norm behind it,
            within a block. The sum that a block ends with stays a call of its own, for it is what
            hidden states, hooks and checkpointing see.
        gates: `act(gate) * up` of MLPs and experts; with the two products in front of it, where
            the record of the GPU has them faster in one kernel (from 512 rows on an H200).
        activations: GELU and its kin. Those that PyTorch computes in one kernel as fast are left.
        rope: rotary positions.
        attention: `attn_implementation="warpsmith"`, in place of "sdpa" and "eager".
        loss: cross-entropy of causal and masked language models, without logits in f32, and
            `torch.nn.CrossEntropyLoss`.
        fused_loss: the head and the loss in one, without the logits, which the output then lacks:
            for calls with labels while training.
        linear: matrix products, with activations behind them, which PyTorch's libraries do better
            as yet.

    Returns:
        What was replaced by which function, and what was left, and why. Nothing replaced is False
        as a bool.

    Raises:
        TypeError: the model is not a module. Nothing is changed then, nor after any other error.
    """
    if not isinstance(model, Module):
        raise TypeError(f"patch: expected a torch.nn.Module, got {type(model).__name__}")
    wanted = {
        "norms": norms,
        "residuals": residuals,
        "gates": gates,
        "activations": activations,
        "rope": rope,
        "loss": loss,
        "linear": linear,
        "fused_loss": fused_loss,
    }
    changed: list[Module] = []
    report = Report()
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    by_compiler = {} if tensor is None else compiled.said(tensor.device)
    try:
        _patch_modules(model, wanted, report, changed)
        _patch_models(model, attention, loss, fused_loss, report)
    except BaseException:
        for module in reversed(changed):
            swap.restore(module)
        _unpatch_models(model)
        raise
    kinds = {r.kind for r in report.replaced}
    report.compiled = {kind: why for kind, why in by_compiler.items() if kind in kinds}
    return report


def _taking(rule: Rule, module: Module) -> tuple[Rule, Hashable]:
    """The rule that takes a module, this one or what is to be tried then, and its option."""
    try:
        return rule, rule.apply_to(module)
    except Left:
        if rule.otherwise is None:
            raise
        return _taking(rule.otherwise, module)


def _patch_modules(
    model: Module, wanted: dict[str, bool], report: Report, changed: list[Module]
) -> None:
    modules = list(model.named_modules())
    parts: set[int] = set()  # of modules that stand for them, too
    for _, module in modules:
        rule = architectures.rule_of(module)
        if rule is not None and rule.parts and wanted[rule.kind]:
            with contextlib.suppress(Left):
                if not swap.is_swapped(module):
                    rule.apply_to(module)
                parts.update(id(getattr(module, part)) for part in rule.parts)
    for name, module in reversed(modules):  # parts first: blocks look at their norms
        cls = type(module).__name__
        if swap.is_swapped(module) or id(module) in parts:
            continue
        rule = architectures.rule_of(module) or _torch_rule(module)
        if rule is None:
            leaf = next(module.children(), None) is None
            why = reasons.of_class(type(module), _has_rule)
            if why or leaf:
                report.left.append(Kept(name, cls, why or reasons.of(module)))
            continue
        if not wanted[rule.kind]:
            if rule.kind != "fused_loss":  # which is no part of what is there
                products = rule.kind == "linear"
                why = reasons.PRODUCTS if products else f"{rule.kind}=False"
                report.left.append(Kept(name, cls, why))
            continue
        try:
            rule, option = _taking(rule, module)
        except Left as why:
            report.left.append(Kept(name, cls, str(why)))
            continue
        swap.swap(module, rule.make, option)
        changed.append(module)
        report.replaced.append(Replaced(name, cls, rule.kind, rule.function.format(option)))
    report.replaced.reverse()
    report.left.reverse()


def _patch_models(
    model: Module,
    with_attention: bool,
    with_loss: bool,
    with_head: bool,
    report: Report,
) -> None:
    for name, part in attention.models(model):
        cls = type(part).__name__
        if architectures.of_class(type(part)) is None:
            made = reasons.of_class(type(part), lambda c: architectures.of_class(c) is not None)
            why = made or reasons.UNLISTED
            report.left.append(Kept(name, cls, why))
            continue
        if with_attention:
            try:
                if attention.patch(part):
                    function = "scaled_dot_product_attention"
                    report.replaced.append(Replaced(name, cls, "attention", function))
            except Left as why:
                report.left.append(Kept(name, cls, f"attention: {why}"))
        if with_loss:
            try:
                if losses.patch(part):
                    report.replaced.append(Replaced(name, cls, "loss", "cross_entropy"))
            except Left as why:
                report.left.append(Kept(name, cls, f"loss: {why}"))
        if with_head and losses.kind_of(part) in losses.LOSSES and not architectures.rule_of(part):
            report.left.append(Kept(name, cls, "fused_loss: no rule for its head"))


def _unpatch_models(model: Module) -> list[Restored]:
    """What of models as a whole has its own attention or loss again."""
    restored = []
    for name, part in attention.models(model):
        done = {"attention": attention.unpatch(part), "loss": losses.unpatch(part)}
        cls = type(part).__name__
        restored += [Restored(name, cls, kind) for kind, was in done.items() if was]
    return restored


def unpatch(model: Module) -> Report:
    """Undoes `patch`: every module has its own class again, bit for bit what it computed before.

    Args:
        model: what was patched, a copy or a part of it.

    Returns:
        What was given back, as `restored`; and as `replaced` what is still served here, empty but
        for modules whose class somebody has exchanged since
        (`torch.distributed.fsdp.fully_shard` does so): unwrap these first.

    Raises:
        TypeError: the model is not a module.
    """
    if not isinstance(model, Module):
        raise TypeError(f"unpatch: expected a torch.nn.Module, got {type(model).__name__}")
    report, restored = Report(), list[Restored]()
    for name, module in model.named_modules():
        if not swap.is_swapped(module):
            continue
        cls = type(module).__name__
        if swap.restore(module):
            restored.append(Restored(name, cls))
        else:
            made = type(module)._warpsmith_made[1]  # type: ignore[attr-defined]
            report.replaced.append(Replaced(name, cls, made, made))
            report.left.append(Kept(name, cls, "its class has been exchanged since"))
    report.restored = [*restored, *_unpatch_models(model)]
    return report
