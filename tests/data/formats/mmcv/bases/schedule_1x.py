optimizer = dict(type='SGD', lr=0.02, momentum=0.9)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=1))
lr_config = dict(policy='step', step=[8, 11])
runner = dict(type='EpochBasedRunner', max_epochs=12)
