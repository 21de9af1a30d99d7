"""The packages of frameworks. Their code is never part of a user's project."""

FRAMEWORKS = {
    "torch": "PyTorch",
    "apex": "PyTorch",
    "autoclip": "PyTorch",
    "timm": "PyTorch",
    "zclip": "PyTorch",
    "paddle": "Paddle",
    "tensorflow": "TensorFlow",
    "tf_agents": "TensorFlow",
    "tf_slim": "TensorFlow",
    "keras": "Keras",
    "tf_keras": "Keras",
    "jax": "JAX",
    "optax": "JAX",
}
