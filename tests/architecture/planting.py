"""Build the tiny models of ``live_models`` and plant deltas in their living modules.

Which rows of a fused module are queries, keys, values or the activated half is found by experiment, on the
forward pass (``fused_rows``).
"""

from __future__ import annotations

import torch
import transformers
from torch import nn

from indexer.names import DeltaKey
from tests.architecture.live_models import EVERY, NESTED, SIZES

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def config_of(name: str) -> transformers.PretrainedConfig:
    model_type, live = name.split()[0], EVERY[name]
    known = transformers.AutoConfig.for_model(model_type)
    keys = set(known.to_dict()) - set(known.attribute_map)
    sizes = {} if name in NESTED else {key: size for key, size in SIZES.items() if key in keys}
    return transformers.AutoConfig.for_model(model_type, **(sizes | live.config))


def build(name: str, head: str = "") -> nn.Module:
    """A tiny model with random weights, bare or with a head. Raises ValueError where it has no such head."""
    torch.default_generator.manual_seed(0)  # not those of GPUs, for which torch would note the stack each time
    maker = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    model = maker.from_config(config_of(name)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.normal_(0, 0.3)
    return model


# --- which rows do what, by experiment


def read_after(
    model: nn.Module, module: nn.Module, reader: nn.Module, length: int, position: int, size: float
) -> torch.Tensor:
    """What ``reader`` takes in, (rows, length, …), where run r adds ``size`` to output row r at ``position``."""
    seen: list[torch.Tensor] = []
    rows = module.weight.shape[1] if type(module).__name__ == "Conv1D" else module.weight.shape[0]
    change = torch.zeros(rows, length, rows, dtype=torch.float64)
    change[:, position] = size * torch.eye(rows, dtype=torch.float64)
    hooks = (
        module.register_forward_hook(lambda _module, _inputs, out: out + change.reshape(out.shape)),
        reader.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].clone())),
    )
    with torch.no_grad():
        model(input_ids=torch.tensor([[5, 7][:length]]).repeat(rows, 1))
    for hook in hooks:
        hook.remove()
    return seen.pop().reshape(rows, length, -1)


def fused_rows(model: nn.Module, families: list[str], module: nn.Module, reader: nn.Module) -> dict[str, list[int]]:
    """The output rows of a fused module that the forward pass uses as each of its families.

    ``reader`` is the module that takes in the result. Attention: over a single token the softmax is 1, so
    only values act; at the first of two tokens a value or a key acts on the second one, a query does not. A
    gated feed-forward is linear in the half outside of the activation and not in the half inside.
    """
    model.double()

    def effect(length: int, position: int, size: float) -> torch.Tensor:
        still = read_after(model, module, reader, length, position, 0.0)
        return (read_after(model, module, reader, length, position, size) - still)[:, -1]

    if families == ["gate", "feedforward1"]:
        bends = (effect(1, 0, 2.0) - 2 * effect(1, 0, 1.0)).abs().amax(dim=1) > 1e-9
        rows = {"gate": bends, "feedforward1": ~bends}
    else:
        alone = effect(1, 0, 0.5).abs()
        values = alone.amax(dim=1) > 1e-9
        keys = (effect(2, 0, 0.5).abs().amax(dim=1) > 1e-9) & ~values
        queries = (effect(2, 1, 0.5).abs().amax(dim=1) > 1e-9) & ~values & ~keys
        assert bool((queries | keys | values).all())
        columns = alone[values].argmax(dim=1).tolist()
        assert columns == sorted(columns), "values must come in the order in which the output takes them"
        rows = {"query": queries, "key": keys, "value": values}
    model.float()
    return {family: mask.nonzero().flatten().tolist() for family, mask in rows.items()}


# --- planting and finding


def modules_at(model: nn.Module, path: str) -> list[nn.Module]:
    """The modules that ``path`` names, in order; none where a part of it does not exist."""
    modules = [model]
    for part in path.split("."):
        if part == "*":
            modules = [child for module in modules for child in module]
        else:
            modules = [getattr(module, part) for module in modules if getattr(module, part, None) is not None]
    return modules


def plant(model: nn.Module, name: str) -> dict[DeltaKey, torch.Tensor]:
    """Add a different random delta to every family of every layer; what was added, (out, in)."""
    live = model.base_model if hasattr(model, "base_model") else model
    generator = torch.Generator().manual_seed(1)
    planted: dict[DeltaKey, torch.Tensor] = {}
    for stack_name, families in EVERY[name].stacks.items():
        by_path: dict[str, list[str]] = {}
        for family, path in families.items():
            by_path.setdefault(path, []).append(family)
        divided: dict[str, dict[str, list[int]]] = {}
        for path, group in by_path.items():
            if len(group) > 1 and (fused_modules := modules_at(live, path)):
                after = families["output" if "query" in group else "feedforward2"]
                divided[path] = fused_rows(model, group, fused_modules[0], modules_at(live, after)[0])
        for path, group in by_path.items():
            for layer, module in enumerate(modules_at(live, path)):
                with torch.no_grad():
                    weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
                    for family in group:
                        rows = divided[path][family] if path in divided else list(range(weight.shape[0]))
                        delta = torch.randn(len(rows), weight.shape[1], generator=generator)
                        weight[rows] += delta
                        planted[DeltaKey(stack_name, layer, family)] = delta
    return planted
