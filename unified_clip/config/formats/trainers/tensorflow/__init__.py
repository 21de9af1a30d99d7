"""The formats of TensorFlow and Keras."""
