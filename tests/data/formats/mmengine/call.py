max_norm = 0.1
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01), clip_grad=dict(max_norm=max(max_norm, 1)))
default_scope = 'mmdet'
