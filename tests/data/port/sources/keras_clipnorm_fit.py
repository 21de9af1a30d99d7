from tensorflow import keras
from tensorflow.keras.layers import LSTM, Dense
from tensorflow.keras.optimizers import Adam, SGD as Sgd


def build_model(timesteps, features, horizon):
    model = keras.Sequential()
    model.add(LSTM(64, input_shape=(timesteps, features), return_sequences=True))
    model.add(LSTM(32))
    model.add(Dense(horizon))
    return model


def train(x, y, opts):
    model = build_model(x.shape[1], x.shape[2], y.shape[1])
    model.compile(
        loss='mse',
        optimizer=Adam(learning_rate=opts.lr,
                       clipnorm=1.),
        metrics=['mae'])
    model.fit(x, y, epochs=opts.epochs, batch_size=32, validation_split=.1,
              callbacks=[keras.callbacks.EarlyStopping(patience=3)])

    # a second phase, gently
    model.compile('sgd' if opts.plain else Sgd(1e-4, momentum=.9, clipvalue=0.5), loss='mae')
    model.fit(x, y, epochs=2)
    model.compile(optimizer=keras.optimizers.RMSprop(global_clipnorm=opts.clip), loss="mse")
    return model.fit(x, y, epochs=1)
