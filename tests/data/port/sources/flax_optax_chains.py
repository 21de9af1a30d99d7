import jax
import jax.numpy as jnp
import optax as ox
from flax import linen as nn
from flax.training.train_state import TrainState
from optax import adaptive_grad_clip, chain


class MLP(nn.Module):
    width: int = 128

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))


def first(lr, max_norm):
    return ox.chain(
        ox.clip_by_global_norm(max_norm),
        ox.adamw(lr),
    )


def not_first(lr):
    # clips what Adam makes of the gradient
    return ox.chain(ox.scale_by_adam(), ox.clip(1.0), ox.scale(-lr))


def factory(config):
    parts = []
    if config.clip is not None:
        parts.append({
            'norm': ox.clip_by_global_norm,
            'value': ox.clip,
            'block': ox.clip_by_block_rms,
        }[config.clip](config.clip_at))
    if config.agc:
        parts += [adaptive_grad_clip(config.agc, eps=1e-3)]
    schedule = ox.warmup_cosine_decay_schedule(0.0, config.lr, 1000, config.steps)
    return chain(*parts, ox.lion(schedule))


def scheduled(lr):
    return chain(ox.inject_hyperparams(ox.clip_by_global_norm)(max_norm=ox.linear_schedule(1., .1, 1000)), ox.sgd(lr))


def create_state(rng, tx=None):
    model = MLP()
    params = model.init(rng, jnp.ones((1, 8)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx or first(1e-3, 1.0))


@jax.jit
def train_step(state, x, y):
    grads = jax.grad(lambda p: jnp.mean((state.apply_fn(p, x) - y) ** 2))(state.params)
    return state.apply_gradients(grads=grads), ox.global_norm(grads)
