"""`spes-peer data prepare`: text to token shards, in many processes, and so that it can be stopped at any time.

sources      what is mixed: a recipe, or flags
documents    raw records to texts: JSON, broken UTF-8, large documents in parts
encoders     texts to token ids
workers      batches of records through many processes, in their order
held_out     which documents no peer trains on
lanes        documents dealt to shards
journal      what is done, on disk
prepare      all of it together
show         what was made, for a person
"""
