"""What differs between releases of Keras. Each line names the release that made it unnecessary."""

from __future__ import annotations

import keras

IS_KERAS_2: bool = keras.__version__.startswith("2.")  # until TensorFlow 2.16, which installs Keras 3


def needs_keras_3(feature: str) -> str:
    return f"{feature} needs Keras 3, which TensorFlow installs since 2.16, but Keras {keras.__version__} is installed"
