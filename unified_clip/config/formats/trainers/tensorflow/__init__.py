"""The configuration formats of Keras, and of TensorFlow trainers."""
