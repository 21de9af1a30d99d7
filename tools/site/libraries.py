"""The page of libraries: frameworks, trainers and optimizers, and their support in unified_clip."""

from __future__ import annotations

from collections.abc import Iterator

from unified_clip._kit import markdown
from unified_clip.config.formats import FORMATS
from unified_clip.port.catalog import clip_functions, settings

FRAMEWORKS = ("PyTorch", "TensorFlow", "Keras", "Paddle", "JAX", "optax", "MLX", "NumPy")

PACKAGES = {
    "accelerate": "Accelerate",
    "apex": "Apex",
    "deepspeed": "DeepSpeed",
    "jax": "JAX",
    "keras": "Keras",
    "lightning": "Lightning",
    "numpy": "NumPy",
    "opacus": "Opacus",
    "optax": "optax",
    "paddle": "Paddle",
    "paddleformers": "PaddleFormers",
    "paddlenlp": "PaddleNLP",
    "ray": "RLlib",
    "stable_baselines3": "Stable-Baselines3",
    "tf": "TensorFlow",
    "tf_slim": "TF-Slim",
    "timm": "timm",
    "torch": "PyTorch",
    "transformers": "Transformers",
    "trl": "TRL",
}
"""The title of each package whose clips `unified-clip port` rewrites or flags."""

PAGES = {
    "PyTorch": "integrations/pytorch.md",
    "TensorFlow": "tensorflow.md",
    "Keras": "integrations/keras.md",
    "Paddle": "integrations/paddle.md",
    "JAX": "jax.md",
    "optax": "integrations/optax.md",
    "MLX": "mlx.md",
    "NumPy": "quickstart.md",
    "Accelerate": "integrations/accelerate.md",
    "Flax": "integrations/optax.md#flax",
    "Lightning": "integrations/lightning.md",
    "Megatron-core": "integrations/engines.md#megatron-core",
    "torchtitan": "integrations/engines.md#torchtitan",
    "Transformers": "integrations/transformers.md",
}
"""{library: page about clipping in the library}."""

RECORDED = ("PyTorch", "TensorFlow", "Keras", "Paddle", "optax", "Accelerate", "Lightning", "Transformers")
"""The libraries whose own clips `unified-clip record` records. The last three call PyTorch's functions."""

TITLES = {"Hugging Face's TrainingArguments": "Transformers"}
"""{title of a trainer's format: title of the library}, if the two titles differ."""

BEGIN = """# Libraries

What you can do with each framework, trainer and optimizer:

- **Clip**: call unified_clip in code that uses the library, or attach a clip to the optimizer.
- **Configuration**: `unified-clip config import`, `config export`, `config check` and `explain` read the clip from the
  library's own configuration files ([formats](formats.md)).
- **Port**: `unified-clip port` rewrites or flags the library's own clips in Python source ([porting](port.md)).
- **Record**: `unified-clip record` records the library's own clips ([recording](recording.md)).

An empty cell means that unified_clip does not support this. `port` and `config check` also report names and keys
that look like the clip of an unknown library.
"""

END = """## Experiment trackers, tests and CI

- TensorBoard, MLflow and Weights & Biases: log norms and clip rates ([monitoring](api/monitor.md)).
- pytest: compare gradients and clips in your tests ([testing](api/testing.md)).
- GitHub Actions, GitLab CI and SARIF: [parity in CI](ci.md), [check of configurations](config-check.md).
- Files of gradients, such as safetensors, `.npz` and `.pt`: [gradient files](gradient_files.md).

If your library is missing, call a function of your framework's namespace, which clips any container of tensors
([quickstart](quickstart.md)).
"""


def page() -> str:
    header = ["library", "clip", "configuration", "port", "record"]
    trainer_names = sorted({*PAGES, *formats(), *ported()} - set(FRAMEWORKS), key=str.lower)
    tables = (markdown.table(header, [row(name) for name in section]) for section in (FRAMEWORKS, trainer_names))
    frameworks, trainers = tables
    sections = [BEGIN, "## Frameworks", frameworks, "## Trainers and optimizers", trainers, END]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def row(name: str) -> list[str]:
    return [
        name,
        f"[yes]({PAGES[name]})" if name in PAGES else "",
        ", ".join(f"`{key}`" for key in formats().get(name, ())),
        "yes" if name in ported() else "",
        "yes" if name in RECORDED else "",
    ]


def formats() -> dict[str, list[str]]:
    by_title: dict[str, list[str]] = {}
    for name, file_format in FORMATS.items():
        for title in _libraries(TITLES.get(file_format.title, file_format.title)):
            by_title.setdefault(title, []).append(name)
    return by_title


def ported() -> set[str]:
    trainers = (name for setting in settings() for name in (*setting.packages, *setting.classes, *setting.elsewhere))
    packages = {name.partition(".")[0] for name in (*clip_functions(), *trainers)}
    return {PACKAGES[name] for name in packages if name in PACKAGES}


def _libraries(title: str) -> Iterator[str]:
    """A format can belong to two libraries."""
    yield from title.split(", ")
