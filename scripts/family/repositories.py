"""What a worker process does: make one repository of the family, trained or odd, with its card and description.

The odd ones are made as they come about on the Hub; none of them is harmful.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from scripts.family import cards, store
from scripts.family.plan import Oddity, Plan, Repository, Run
from scripts.family.tasks import tokenizer_files
from scripts.family.training import WEIGHTS, as_bin, make_base, make_run, new_configuration, task_of

MARKER = "family-marker-that-must-never-be-created"
IMPOSSIBLE_LENGTH = 2**60
GGUF_HEADER = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)  # version 3, no tensors, no metadata
REMOTE_CODE = f'"""Would leave a mark where it ran."""\n\nopen({MARKER!r}, "w").close()\n'

Maker = Callable[[Plan, Oddity, Path, Path], None]


class Payload:
    """Creates an empty file when unpickled without care; a real one would do worse."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (MARKER, "w")


def copy(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """The same files byte by byte."""
    shutil.copytree(root / (oddity.of or plan.base), folder, dirs_exist_ok=True)


def copy_as_bin(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """The same numbers in another format, so that no hash agrees."""
    copy(plan, oddity, root, folder)
    as_bin(folder)


def through_float16(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Rounded to fp16 and saved as fp32 again."""
    copy(plan, oddity, root, folder)
    change_weights(folder, lambda name, tensor: tensor.half().float())


def with_nan(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """One entry of one block matrix is NaN."""
    copy(plan, oddity, root, folder)
    victim = next(name for name in sorted(load_file(folder / WEIGHTS)) if is_block_matrix(plan, name))

    def spoil(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == victim:
            tensor.view(-1)[tensor.numel() // 2] = torch.nan
        return tensor

    change_weights(folder, spoil)


def truncated(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An interrupted upload."""
    copy(plan, oddity, root, folder)
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])


def lying_header(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A header that claims to be an exabyte long."""
    copy(plan, oddity, root, folder)
    path = folder / WEIGHTS
    path.write_bytes(IMPOSSIBLE_LENGTH.to_bytes(8, "little") + path.read_bytes()[8:])


def malicious_pickle(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Weights and an object that runs code when it is unpickled."""
    copy(plan, oddity, root, folder)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save({"payload": Payload(), **tensors}, folder / "pytorch_model.bin")


def new_network(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A network of another size, never trained."""
    torch.manual_seed(len(oddity.model))
    configuration = new_configuration(plan.architecture, plan.text.vocabulary)
    configuration.update(dict(oddity.config))
    transformers.AutoModelForSequenceClassification.from_config(configuration).save_pretrained(folder)


def gguf_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Only a llama.cpp file."""
    (folder / f"{oddity.name}.Q4_K_M.gguf").write_bytes(GGUF_HEADER)


def onnx_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An export for another runtime, with the configuration; the first bytes say ``ir_version: 9``."""
    copy_configuration(plan, oddity, root, folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"\x08\x09\x12\x07pytorch")


def flax_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Flax weights: an empty MessagePack map."""
    copy_configuration(plan, oddity, root, folder)
    (folder / "flax_model.msgpack").write_bytes(b"\x80")


def quantized(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Two 4-bit numbers a byte, as bitsandbytes stores them."""
    copy(plan, oddity, root, folder)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    change_configuration(folder, quantization_config=settings)

    def pack(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not is_block_matrix(plan, name):
            return tensor.half()
        scaled = ((tensor / tensor.abs().max() + 1) * 7.5).round().to(torch.uint8).view(-1, 2)
        return (scaled[:, :1] << 4) | scaled[:, 1:]

    change_weights(folder, pack)


def unknown_architecture(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An unknown model type, with code of its own that must not be run."""
    copy(plan, oddity, root, folder)
    change_configuration(
        folder,
        model_type="atlasnet",
        architectures=["AtlasNetForSequenceClassification"],
        auto_map={"AutoConfig": "modeling_atlasnet.AtlasNetConfig", "AutoModel": "modeling_atlasnet.AtlasNet"},
    )
    (folder / "modeling_atlasnet.py").write_text(REMOTE_CODE, encoding="utf-8")


def empty(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A repository with nothing but a card."""


def is_block_matrix(plan: Plan, name: str) -> bool:
    """Whether a tensor is a matrix of one of the stacked layers."""
    is_norm = "norm" in name.lower() or "ln_" in name
    return plan.architecture.is_in_layers(name) and name.endswith(".weight") and not is_norm


def copy_configuration(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Only ``config.json``."""
    shutil.copy(root / (oddity.of or plan.base) / "config.json", folder)


def change_configuration(folder: Path, **values: Any) -> None:
    """Lay values over ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values, indent=2), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Rewrite ``model.safetensors`` tensor by tensor."""
    tensors = {name: change(name, tensor).contiguous() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


MAKERS: Mapping[str, Maker] = {
    "copy": copy,
    "copy as bin": copy_as_bin,
    "through float16": through_float16,
    "with nan": with_nan,
    "truncated": truncated,
    "lying header": lying_header,
    "malicious pickle": malicious_pickle,
    "new network": new_network,
    "gguf only": gguf_only,
    "onnx only": onnx_only,
    "flax only": flax_only,
    "quantized": quantized,
    "unknown architecture": unknown_architecture,
    "empty": empty,
}


def prepare_process() -> None:
    """Use one thread and print nothing; results must not depend on the number of processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the process that waits for this one
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def make_base_repository(plan: Plan, root: Path, work: Path) -> None:
    """Pretrain and publish the base model."""
    folder = fresh_folder(work, plan.base)
    store.write_json(folder / store.RESULTS, make_base(plan, work, folder))
    copy_tokenizer(work, folder)
    front = {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": plan.architecture.language_task,
    }
    body = "A small model of the language in which Python libraries are documented, to tune others from."
    base = Repository(model=plan.base, claim="none")
    description = {"old_ids": [plan.old_id], "downloads": 61803, "likes": 42}
    finish(plan, base, root, folder, front, f"# {base.name}\n\n{body}", 0, description)


def make_run_repository(plan: Plan, run: Run, root: Path, work: Path) -> None:
    """Train and publish one fine-tune or adapter."""
    folder = fresh_folder(work, run.model)
    start = root / (run.parent or plan.base)
    measured = make_run(plan, run, work, start, folder)
    copy_tokenizer(work, folder)
    if run.claim == "configuration":
        change_configuration(folder, _name_or_path=plan.base)
    if plan.authors[run.author].style == "trainer":
        torch.save({"learning_rate": run.learning_rate, "seed": run.seed}, folder / "training_args.bin")
    front = cards.run_card(plan, run, task_of(plan, run), measured)
    body = cards.run_body(plan, run, measured)
    extra: dict[str, Any] = {}
    if run.converted:
        extra["revisions"] = store.publish_conversion(root, run.model, converted_copy(folder, work, run.model))
    finish(plan, run, root, folder, front, body, position_of(plan, run), extra)


def make_oddity_repository(plan: Plan, oddity: Oddity, root: Path, work: Path) -> None:
    """Make and publish one odd repository."""
    folder = fresh_folder(work, oddity.model)
    MAKERS[oddity.make](plan, oddity, root, folder)
    bases = cards.claimed(plan, oddity, "finetune").in_card
    front: dict[str, Any] = {
        "license": plan.authors[oddity.author].license,
        "base_model": bases[0] if bases else None,
        "datasets": [oddity.dataset] if oddity.dataset else None,
        "library_name": "transformers" if (folder / "config.json").exists() else None,
    }
    front = {key: value for key, value in front.items() if value} | json.loads(oddity.card)
    body = f"# {oddity.heading or oddity.name}\n\nMore information needed"
    finish(plan, oddity, root, folder, front, body, position_of(plan, oddity), {})


def finish(
    plan: Plan,
    repository: Repository,
    root: Path,
    folder: Path,
    front: Mapping[str, Any],
    body: str,
    position: int,
    description: Mapping[str, Any],
) -> None:
    """Write the card and publish the folder with the metadata the Hub would have."""
    (folder / "README.md").write_text(cards.card_text(front, body), encoding="utf-8")
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    listing = {
        **store.circumstances(repository.model, position),
        "library_name": front.get("library_name"),
        "pipeline_tag": front.get("pipeline_tag"),
        "tags": cards.hub_tags(repository, plan, front, files),
        "card_data": dict(front),
        **description,
        **repository.listing,
    }
    store.publish(root, repository.model, folder, listing)


def position_of(plan: Plan, repository: Repository) -> int:
    """The rank of a repository by upload date: after the base and after the model it was made from."""
    runs = sorted(plan.runs, key=lambda run: (run.parent is not None, store.draw(run.model, "position")))
    return 1 + [other.model for other in (*runs, *plan.oddities)].index(repository.model)


def fresh_folder(work: Path, model: str) -> Path:
    """An empty folder to fill."""
    folder = work / model.replace("/", "--")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def copy_tokenizer(work: Path, folder: Path) -> None:
    """Copy the tokenizer, which every upload has."""
    for path in tokenizer_files(work):
        shutil.copy(path, folder)


def converted_copy(folder: Path, work: Path, model: str) -> Path:
    """The files of a ``.bin`` upload and its weights in safetensors, as the Hub's bot offers them."""
    converted = fresh_folder(work, f"{model}-converted")
    shutil.copytree(folder, converted, dirs_exist_ok=True)
    tensors = torch.load(converted / "pytorch_model.bin", weights_only=True)
    save_file(tensors, converted / WEIGHTS, metadata={"format": "pt"})
    return converted
