optim_wrapper = dict(
    constructor='MultiOptimWrapperConstructor',
    generator=dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=0.0002), clip_grad=dict(max_norm=10)),
    discriminator=dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=0.0002), clip_grad=dict(max_norm=1)))
