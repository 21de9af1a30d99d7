"""The formats of Keras, and of trainers on TensorFlow."""
