optimizer = dict(type='AdamW', lr=2e-4)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(policy='CosineAnnealing', min_lr_ratio=1e-3)
total_epochs = 24
workflow = [('train', 1)]
