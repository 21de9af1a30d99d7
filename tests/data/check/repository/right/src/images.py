import numpy as np


def to_bytes(image):
    return np.clip(image * 255, 0, 255).astype(np.uint8)
