def clip_audio(samples, seconds, rate):
    """Cut a clip."""
    return samples[: seconds * rate]
