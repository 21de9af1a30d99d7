import paddle


def step(model):
    paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
