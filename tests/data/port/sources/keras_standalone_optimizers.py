"""Which optimizer, by name; from the times when Keras was a package of its own."""
import json

from keras import optimizers
from keras.models import load_model
from keras.optimizers import SGD, Adadelta, Adam

CLIP = {'clipnorm': 1.0}


def get_optimizer(args):
    clipvalue = 0
    clipnorm = 10
    if args.algorithm == 'rmsprop':
        optimizer = optimizers.RMSprop(lr=0.001, rho=0.9, epsilon=1e-06, clipnorm=clipnorm, clipvalue=clipvalue)
    elif args.algorithm == 'sgd':
        optimizer = SGD(lr=0.01, momentum=0.0, decay=0.0, nesterov=False, clipnorm=clipnorm)
    elif args.algorithm == 'adadelta':
        optimizer = Adadelta(lr=1.0, rho=0.95, epsilon=1e-06)
    else:
        optimizer = Adam(**dict(lr=args.lr, **CLIP))
    return optimizer


def resume(path, args):
    model = load_model(path)
    with open(path + '.json') as f:
        history = json.load(f)
    model.compile(loss='binary_crossentropy', optimizer=get_optimizer(args), metrics=['accuracy'])
    return model, history
