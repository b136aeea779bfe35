"""What the files beside a checkpoint say of its training, as each tool writes them."""

from __future__ import annotations

import json

import pytest

from indexer.sources.cards.training_files import MOST_SETTINGS, _flat, is_training_file, read_training, state_from_ends

TRAINER_STATE = {
    "best_global_step": 1000, "best_metric": 0.31, "best_model_checkpoint": "/data/lovelace/runs/lr3e-5/checkpoint-1000",
    "epoch": 2.0, "global_step": 1500, "max_steps": 2250, "num_train_epochs": 3, "train_batch_size": 16,
    "log_history": [
        {"epoch": 0.5, "loss": 0.9, "learning_rate": 2e-5, "step": 500},
        {"epoch": 1.0, "eval_loss": 0.31, "eval_accuracy": 0.9, "step": 1000},
        {"epoch": 2.0, "loss": 0.2, "learning_rate": 1e-5, "step": 1500},
        {"epoch": 2.0, "eval_loss": 0.35, "eval_accuracy": 0.91, "step": 1500},
    ],
}  # fmt: skip
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
  - path: /data/lovelace/private/support.jsonl
    type: chat_template
adapter: lora
lora_r: 32
lora_alpha: 16
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
hub_token: hf_secretsecretsecret
wandb_entity: lovelace
"""
LLAMA_FACTORY = """
model_name_or_path: /mnt/models/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
lora_rank: 8
dataset: identity,alpaca_en_demo
cutoff_len: 2048
per_device_train_batch_size: 1
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
"""
SWIFT = {
    "model": "Qwen/Qwen2.5-7B-Instruct", "train_type": "lora", "tuner_backend": "peft", "max_steps": -1, "seed": 42,
    "dataset": ["AI-ModelScope/alpaca-gpt4-data-zh#500", "swift/self-cognition#500"], "lora_rank": 8,
    "hub_token": None,
}  # fmt: skip
TORCHTUNE = """
model: {_component_: torchtune.models.llama3.lora_llama3_8b, lora_rank: 8, lora_alpha: 16}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: null}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: /tmp/Meta-Llama-3-8B/}
dataset: {_component_: torchtune.datasets.alpaca_dataset, source: yahma/alpaca-cleaned}
optimizer: {_component_: torch.optim.AdamW, lr: 3e-4, weight_decay: 0.01}
lr_scheduler: {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup}
batch_size: 2
epochs: 1
"""
MLX = {
    "model": "mlx-community/Llama-3.2-1B", "fine_tune_type": "lora", "data": "/Users/lovelace/wikisql", "iters": 600,
    "learning_rate": 1e-5, "batch_size": 4, "lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0}, "seed": 0,
}  # fmt: skip
KOHYA = {
    "ss_base_model_version": "sdxl_base_v1-0", "ss_sd_model_name": "sd_xl_base_1.0.safetensors",
    "ss_network_module": "networks.lora", "ss_network_dim": "32", "ss_network_alpha": "16.0",
    "ss_learning_rate": "0.0001", "ss_num_epochs": "10", "ss_epoch": "8", "ss_steps": "1600",
    "ss_max_train_steps": "2000", "ss_seed": "1234", "ss_output_name": "blue-cats", "ss_optimizer": "prodigyopt.Prodigy",
    "ss_dataset_dirs": json.dumps({"10_blue cats": {"n_repeats": 10, "img_count": 20}}),
    "ss_tag_frequency": json.dumps({"10_blue cats": {"cat": 20, "blue fur": 12, "tree": 3}, "5_more": {"cat": 1}}),
    "modelspec.title": "Blue cats", "modelspec.license": "CC-BY-4.0", "modelspec.trigger_phrase": "blucat",
}  # fmt: skip
WANDB = """
wandb_version: 1
_wandb: {value: {python_version: 3.11.7}}
learning_rate: {desc: null, value: 5e-05}
model_name_or_path: {desc: null, value: roberta-base}
dataset_name: {desc: null, value: imdb}
"""


def read(name, content, metadata=None):
    text = content if isinstance(content, str) else json.dumps(content)
    assert is_training_file(name)
    return read_training([(name, text.encode())], metadata)


def test_a_trainers_state():
    found = read("trainer_state.json", TRAINER_STATE)
    assert (found.tool, found.step, found.max_steps, found.epoch, found.epochs) == ("transformers", 1500, 2250, 2.0, 3)
    assert (found.train_loss, found.eval_loss, found.best_metric) == (0.2, 0.35, 0.31)
    assert found.best_checkpoint == "checkpoint-1000"
    assert found.learning_rate == 2e-5, "the largest: it decays to nothing"
    assert found.settings["eval_accuracy"] == 0.91
    assert "/data" not in json.dumps(found.to_dict())


def test_of_a_long_state_the_ends_are_enough():
    history = [
        {"loss": 1 - step / 9000, "step": step, "epoch": step / 1000, "learning_rate": 1e-5} for step in range(1, 4000)
    ]
    state = {"best_metric": 0.3, "epoch": 4.0, "global_step": 3999, "log_history": history, "max_steps": 8000,
             "stateful_callbacks": {"TrainerControl": {"args": {"should_save": True}}}, "num_train_epochs": 8}  # fmt: skip
    whole = json.dumps(state, indent=2).encode()
    found = read_training([("trainer_state.json", state_from_ends(whole[:3000], whole[-3000:]))])
    expected = read_training([("trainer_state.json", whole)])
    for name in ("step", "epoch", "max_steps", "epochs", "train_loss", "learning_rate", "best_metric", "log"):
        assert getattr(found, name) == getattr(expected, name), name


def test_axolotl():
    found = read("axolotl_config.yaml", AXOLOTL)
    assert (found.tool, found.base) == ("axolotl", "NousResearch/Meta-Llama-3-8B")
    assert found.datasets == ("mhenrichsen/alpaca_2k_test", "support")
    assert (found.method, found.rank, found.alpha, found.length) == ("lora", 32, 16, 4096)
    assert (found.batch_size, found.accumulation, found.epochs, found.learning_rate) == (2, 4, 4, 2e-4)
    assert (found.optimizer, found.scheduler) == ("adamw_bnb_8bit", "cosine")


def test_secrets_and_people_are_left_out():
    for name in ("axolotl_config.yaml", "config.yaml"):
        text = json.dumps(read(name, AXOLOTL).to_dict())
        assert "hf_secret" not in text
        assert "lovelace" not in text


def test_llama_factory():
    found = read("llamaboard_config.yaml", LLAMA_FACTORY)
    assert (found.tool, found.base) == ("LLaMA-Factory", "Qwen2.5-7B-Instruct")
    assert found.datasets == ("identity", "alpaca_en_demo")
    assert (found.stage, found.method, found.rank, found.warmup) == ("sft", "lora", 8, 0.1)


def test_ms_swift():
    found = read("args.json", SWIFT)
    assert (found.tool, found.base, found.max_steps) == ("ms-swift", "Qwen/Qwen2.5-7B-Instruct", None)
    assert found.datasets == ("AI-ModelScope/alpaca-gpt4-data-zh", "swift/self-cognition")


def test_torchtune():
    found = read("torchtune_config.yaml", TORCHTUNE)
    assert (found.tool, found.base, found.datasets) == ("torchtune", "Meta-Llama-3-8B", ("yahma/alpaca-cleaned",))
    assert (found.learning_rate, found.rank, found.optimizer) == (3e-4, 8, "torch.optim.AdamW")


def test_mlx():
    found = read("adapter_config.json", MLX)
    assert (found.tool, found.base, found.datasets) == ("mlx-lm", "mlx-community/Llama-3.2-1B", ("wikisql",))
    assert (found.rank, found.max_steps, found.seed) == (8, 600, 0)


def test_kohya_and_modelspec():
    found = read_training([], KOHYA)
    assert (found.tool, found.base, found.run) == ("kohya", "sd_xl_base_1.0.safetensors", "blue-cats")
    assert found.datasets == ("blue cats",)
    assert found.tags == ("cat", "blue fur", "tree")
    assert (found.rank, found.alpha, found.step, found.epoch, found.seed) == (32, 16.0, 1600, 8, 1234)
    assert (found.licence, found.trigger) == ("CC-BY-4.0", "blucat")
    assert found.settings["ss_base_model_version"] == "sdxl_base_v1-0"


def test_weights_and_biases():
    found = read("config.yaml", WANDB)
    assert (found.base, found.datasets, found.learning_rate) == ("roberta-base", ("imdb",), 5e-5)
    summary = read("wandb-summary.json", {"train/loss": 0.5, "eval/loss": 0.6, "_step": 100, "_runtime": 3})
    assert (summary.train_loss, summary.eval_loss, summary.step) == (0.5, 0.6, 100)


def test_an_mlflow_run():
    found = read_training([
        ("params/learning_rate", b"3e-05"), ("params/model_name_or_path", b"roberta-base"),
        ("metrics/eval_loss", b"1700000000000 0.5 100\n1700000000001 0.4 200\n"), ("tags/mlflow.runName", b"lr3e-5"),
        ("tags/mlflow.user", b"lovelace"), ("tags/mlflow.source.name", b"/home/lovelace/train.py"),
    ])  # fmt: skip
    assert (found.base, found.learning_rate, found.eval_loss, found.step) == ("roberta-base", 3e-5, 0.4, 200)
    assert found.run == "lr3e-5"
    assert "lovelace" not in json.dumps(found.to_dict())


def test_the_nearest_file_counts():
    near, far = {"learning_rate": 1e-5}, {"learning_rate": 2e-5, "dataset_name": "imdb"}
    found = read_training([("args.json", json.dumps(near).encode()), ("run/args.json", json.dumps(far).encode())])
    assert (found.learning_rate, found.datasets) == (1e-5, ("imdb",))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"[]", b"null", b"{", b"[" * 5000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b"\x80\x04.",
        b'{"learning_rate": NaN, "seed": 1e999, "max_steps": ' + b"9" * 5000 + b"}",
        b'{"datasets": [[[[[["a"]]]]], {"path": {"path": 1}}], "lora_r": [], "log_history": [1, null, {"loss": "x"}]}',
        b"a: &a [1, 1]\nb: *a", b"!!python/object/apply:os.system ['true']",
        json.dumps({f"key{number}": number for number in range(10 * MOST_SETTINGS)}).encode(),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["trainer_state.json", "config.yaml", "trainer_log.jsonl", "metrics/loss", "params/lr"]
)
def test_any_content_is_data(name, content):
    state_from_ends(content, content)
    found = read_training([(name, content)], {"ss_tag_frequency": content.decode("latin-1"), "ss_datasets": "["})
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(found.settings) <= MOST_SETTINGS


def test_pickles_and_other_files_are_not_read():
    for name in ("training_args.bin", "optimizer.pt", "config.json", "tokenizer_config.json", "model.safetensors"):
        assert not is_training_file(name)


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("output_dir", "/home/ann/team-x", None),
        ("logdir", "s3://bucket/team-x", None),
        ("trainer.default_root_dir", "/mnt/team-x", None),
        ("train_output_path", "/mnt/team-x", None),
        ("project_dir", "C:\\work\\team-x", None),
        ("checkpoint_save_path", "/mnt/team-x", None),
        ("output_dir", "out", "out"),  # says nothing of a machine
        ("train_data_dir", "/data/imdb", "./imdb"),
        ("pretrained_model_path", "/models/tiny", "./tiny"),
    ],
)
def test_where_a_run_was_written_is_left_out(key, value, kept):
    assert _flat({key: value}).get(key) == kept
