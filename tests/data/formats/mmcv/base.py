_base_ = ['bases/schedule_1x.py']
optimizer = dict(lr=0.01)
optimizer_config = dict(grad_clip=dict(max_norm=10))
