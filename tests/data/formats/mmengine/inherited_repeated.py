_base_ = ['bases/schedule_clip.py', 'bases/schedule_1x.py']
model = dict(type='RetinaNet')
