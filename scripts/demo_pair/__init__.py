"""The packaged demo pair: a small code model and the DFlash 2 head that drafts for it."""
