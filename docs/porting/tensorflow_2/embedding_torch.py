"""The port of embedding_tf.py: its clip and its Adam do not sum the repeated rows either."""

import numpy as np
import torch

from unified_clip.torch import clip_by_global_norm, global_norm


class KerasAdam(torch.optim.Optimizer):
    """Adam of Keras on TensorFlow, which squares each stored row of a sparse gradient alone."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-7):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p] or {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                self.state[p], gradient = state, p.grad
                state["t"] += 1
                if gradient.is_sparse:
                    squares = gradient._values().square()
                    square = torch.zeros_like(p).index_add_(0, gradient._indices()[0], squares)
                    gradient = gradient.to_dense()
                else:
                    square = gradient.square()
                beta1, beta2 = group["betas"]
                state["m"].lerp_(gradient, 1 - beta1)
                state["v"].lerp_(square, 1 - beta2)
                b1, b2 = (float(1 - np.float32(beta) ** np.float32(state["t"])) for beta in (beta1, beta2))
                p.sub_(group["lr"] * b2**0.5 / b1 * state["m"] / (state["v"].sqrt() + group["eps"]))


random = np.random.default_rng(0)
table = torch.nn.Embedding(50, 8, sparse=True)
table.weight.data = torch.tensor(random.normal(size=(50, 8)).astype("float32"))
kernel = torch.nn.Parameter(torch.tensor(random.normal(size=(8, 1)).astype("float32")))
tokens = np.minimum(random.geometric(0.2, size=(16, 8, 12)), 49)
targets = random.normal(size=(16, 8, 1)).astype("float32")
variables = [table.weight, kernel]
optimizer = KerasAdam(variables, 0.01)
for batch, y in zip(tokens, targets):
    optimizer.zero_grad()
    loss = ((table(torch.tensor(batch)).mean(1) @ kernel - torch.tensor(y)) ** 2).mean()
    loss.backward()
    grads = [p.grad for p in variables]
    norm = global_norm([grad._values() if grad.is_sparse else grad for grad in grads])  # of the stored rows
    clipped, norm = clip_by_global_norm(grads, 0.3, use_norm=norm)
    for p, grad in zip(variables, clipped):
        if p.grad.is_sparse:
            p.grad._values().mul_(0.3 / norm.clamp(min=0.3))  # as in `grad`, but without a sum of the rows
        else:
            p.grad = grad
    optimizer.step()
