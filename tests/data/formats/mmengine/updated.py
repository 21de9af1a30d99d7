optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
optim_wrapper['clip_grad'] = dict(max_norm=2)
optim_wrapper['clip_grad'].update(dict(norm_type='inf'), max_norm=3)
