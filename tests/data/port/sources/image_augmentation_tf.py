"""Input pipeline: distortions of images and boxes."""
import math

import tensorflow as tf

MEAN_RGB = [0.485 * 255, 0.456 * 255, 0.406 * 255]


def blend(image1, image2, factor):
    """Interpolates where factor is in [0, 1], extrapolates else."""
    image1 = tf.cast(image1, tf.float32)
    image2 = tf.cast(image2, tf.float32)
    temp = image1 + factor * (image2 - image1)
    if 0.0 < factor < 1.0:
        return tf.cast(temp, tf.uint8)
    # Extrapolate: we need to clip and then cast.
    return tf.cast(tf.clip_by_value(temp, 0.0, 255.0), tf.uint8)


def color_jitter(image, strength, impl='simclr'):
    image = tf.image.random_saturation(image, 1 - strength, 1 + strength)
    image = tf.image.random_hue(image, 0.2 * strength)
    return tf.clip_by_value(image, 0., 1.)


def image_gradients(image):
    # Sobel edges: derivatives of pixels, by no tape
    edges = tf.image.sobel_edges(image)
    gradient = tf.sqrt(tf.reduce_sum(edges ** 2, -1))
    return tf.clip_by_value(gradient, 0.0, 1.0)


def crop_boxes(boxes, window):
    ymin, xmin, ymax, xmax = tf.split(boxes, 4, axis=-1)
    boxes = tf.concat([
        tf.clip_by_value(ymin, window[0], window[2]),
        tf.clip_by_value(xmin, window[1], window[3]),
        tf.clip_by_value(ymax, window[0], window[2]),
        tf.clip_by_value(xmax, window[1], window[3]),
    ], axis=-1)
    return tf.reshape(boxes, [-1, 4])


def angle(x):
    return math.pi * tf.keras.backend.clip(x, -1, 1)
