optimizer = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=0))
runner = dict(type='EpochBasedRunner', max_epochs=12)
