import math
def probability_of(s): return 1/(1+math.exp(-(s-0.2)/0.03))
