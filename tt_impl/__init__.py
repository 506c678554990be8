"""The implementation under test: a Kolibri-1 decoder for one Blackhole card, and the devices it runs on.

Free of torch and of the oracle's arithmetic; the entry point is `tt_impl.subject.FACTORY`.
"""
