_base_ = ['bases/schedule_clip.py']
optim_wrapper = dict(
    _delete_=True,
    type='AmpOptimWrapper',
    optimizer=_base_.optim_wrapper.optimizer,
    clip_grad=_base_.optim_wrapper['clip_grad'])
