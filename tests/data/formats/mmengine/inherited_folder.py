_base_ = ['{{ fileDirname }}/bases/schedule_clip.py']
work_dir = './work_dirs/{{ fileBasenameNoExtension }}'
