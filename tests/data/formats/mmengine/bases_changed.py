_base_ = ['bases/schedule_clip.py', 'bases/runtime.py']
pipeline = _base_.train_pipeline
_base_.train_dataloader.dataset.pipeline = pipeline
_base_.optim_wrapper.clip_grad.max_norm = 7
del _base_.default_hooks
pipeline[3]['level'] *= 0.3
