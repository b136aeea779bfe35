"""The layers of a real model, by hooks on its blocks: its own forward pass, stopped behind the deepest one asked.

Not from ``output_hidden_states``: its last entry lies behind a final norm in GPT-2 and Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from indexer.profiles.layers import Layers, States, Stem, first_part


class HookedLayers(Layers):
    """``run`` calls a model on the continuous input; ``blocks`` are modules of it, called once each, in order."""

    def __init__(self, run: Callable[[torch.Tensor], Any], blocks: Sequence[nn.Module], **facts: Any) -> None:
        super().__init__(run, blocks, **facts)
        self.run = run

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers: what goes into the first block, and what comes out of the others."""
        self.check(chosen)
        found: States = {}
        last = max(chosen, default=0)

        def before(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            found[0] = first_part(positional) if positional else named["hidden_states"]
            if last == 0:
                raise _Reached

        def behind(layer: int) -> Callable[[nn.Module, Any, Any], None]:
            def keep(module: nn.Module, received: Any, output: Any) -> None:
                if layer in chosen:
                    found[layer] = first_part(output)
                if layer == last:
                    raise _Reached

            return keep

        hooks = [self.blocks[0].register_forward_pre_hook(before, with_kwargs=True)]  # type: ignore[attr-defined]
        hooks += [
            block.register_forward_hook(behind(layer))  # type: ignore[attr-defined]
            for layer, block in enumerate(self.blocks, start=1)
            if layer in chosen
        ]
        try:
            self.run(inputs)
        except _Reached:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return {layer: found[layer] for layer in sorted(chosen)}

    @property
    def device(self) -> torch.device:
        """Where the model's weights lie."""
        return next(self.blocks[0].parameters()).device  # type: ignore[attr-defined]


class StemmedLayers(Layers):
    """An image stem before a language model's layers: patches take the place of tokens.

    ``stem`` turns pixels into embeddings (images, patches, width); positions are added as for tokens.
    """

    def __init__(self, stem: Stem, behind: Layers, **facts: Any) -> None:
        super().__init__(stem, behind.blocks, **facts)
        self.behind = behind

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the language model behind the stem."""
        return self.behind.states(self.stem(inputs), chosen)

    @property
    def device(self) -> torch.device:
        """Where the language model lies."""
        return self.behind.device


class _Reached(Exception):
    """The deepest layer asked for is done."""
