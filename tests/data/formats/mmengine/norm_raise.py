optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.0001, weight_decay=0.0001),
    clip_grad={'max_norm': 1.0, 'error_if_nonfinite': True},
)
