"""stub"""
def render(data, record=()):
    return ""
