model = dict(type='FasterRCNN')
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-4),
    clip_grad=dict(max_norm=1.0, norm_type=2))
