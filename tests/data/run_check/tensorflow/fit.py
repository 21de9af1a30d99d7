#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import keras
import numpy as np

model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, global_clipnorm=5.0), "mse")
model.fit(np.ones([32, 4]), np.ones([32, 1]), batch_size=8, verbose=0)  # found: drift 1 to 4
