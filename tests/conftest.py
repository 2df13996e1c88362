import hypothesis

# The time of one example says nothing on a machine whose cores are shared.
hypothesis.settings.register_profile("refurbish_tf", deadline=None)
hypothesis.settings.load_profile("refurbish_tf")
