default_scope = 'mmdet'
optim_wrapper = dict(clip_grad=dict(max_norm=99))
