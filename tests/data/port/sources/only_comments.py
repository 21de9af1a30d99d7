# This module is kept so that old imports of it work.
#
# Until 0.3 it held
#
#     from paddle.nn import ClipGradByGlobalNorm
#     clip = ClipGradByGlobalNorm(1.0)
#
# and, for the TensorFlow 1 models,
#
#     grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), 5.0)
#
# Both went to optim/clipping.py. Do not add anything here.
#
# -----------------------------------------------------------------------------
#
# TODO(2021-03): remove together with the fluid models
# TODO(2021-05): still used by
#   - configs/faster_rcnn
#   - configs/mask_rcnn
#   - deploy/serving
# TODO(2022-01): why is this still here?
#
# -----------------------------------------------------------------------------
#
# vim: set ts=4 sw=4:
