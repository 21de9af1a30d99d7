optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.1),
    clip_grad=dict(type='agc', max_norm=0.1))
