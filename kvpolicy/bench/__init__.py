"""A/B of two policies, or of two servers, with the engine's own serving benchmark: `kvpolicy bench`.

Windows of the same traffic go to both sides in alternating order; what is compared are ratios within a round.
"""
