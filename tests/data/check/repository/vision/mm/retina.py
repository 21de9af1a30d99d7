model = dict(type='RetinaNet')
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9),
    clip_grad=dict(max_norm=35, norm_type=2))
