import numpy as np
import paddle
from paddle import nn
from paddle.nn import clip


def step(weights, batches):
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, 6], "float32")
        y = paddle.static.data("y", [-1, 2], "float32")
        hidden, out = nn.Linear(6, 8), nn.Linear(8, 2)
        loss = nn.functional.mse_loss(out(nn.functional.relu(hidden(x))), y)
        optimizer = paddle.optimizer.Momentum(0.125, 0.5, grad_clip=clip.GradientClipByGlobalNorm(clip_norm=2.5))
        optimizer.minimize(loss)

    scope, place = paddle.static.global_scope(), paddle.CPUPlace()
    executor = paddle.static.Executor(place)
    executor.run(startup)
    parameters = [hidden.weight, hidden.bias, out.weight, out.bias]
    tensors = {name: scope.find_var(each.name).get_tensor() for name, each in zip(weights, parameters)}
    for name, tensor in tensors.items():
        tensor.set(weights[name], place)
    for batch in batches:
        executor.run(main, feed=batch, fetch_list=[loss])
        yield {name: np.array(tensor) for name, tensor in tensors.items()}, None
