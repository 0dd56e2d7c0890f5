"""Generated from open_inference.proto by `python -m fermata.clients.wire.generate`; do not edit."""

from base64 import b64decode

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# A pool of our own: Triton's client has the same symbols in the default one.
_POOL = DescriptorPool()
_POOL.AddSerializedFile(
    b64decode(
        "ChRvcGVuX2luZmVyZW5jZS5wcm90bxIJaW5mZXJlbmNlIhMKEVNlcnZlckxpdmVSZXF1ZXN0IiIKElNlcnZlckxp"
        "dmVSZXNwb25zZRIMCgRsaXZlGAEgASgIIhQKElNlcnZlclJlYWR5UmVxdWVzdCIkChNTZXJ2ZXJSZWFkeVJlc3Bv"
        "bnNlEg0KBXJlYWR5GAEgASgIIjIKEU1vZGVsUmVhZHlSZXF1ZXN0EgwKBG5hbWUYASABKAkSDwoHdmVyc2lvbhgC"
        "IAEoCSIjChJNb2RlbFJlYWR5UmVzcG9uc2USDQoFcmVhZHkYASABKAgiFwoVU2VydmVyTWV0YWRhdGFSZXF1ZXN0"
        "IksKFlNlcnZlck1ldGFkYXRhUmVzcG9uc2USDAoEbmFtZRgBIAEoCRIPCgd2ZXJzaW9uGAIgASgJEhIKCmV4dGVu"
        "c2lvbnMYAyADKAkiNQoUTW9kZWxNZXRhZGF0YVJlcXVlc3QSDAoEbmFtZRgBIAEoCRIPCgd2ZXJzaW9uGAIgASgJ"
        "Io0CChVNb2RlbE1ldGFkYXRhUmVzcG9uc2USDAoEbmFtZRgBIAEoCRIQCgh2ZXJzaW9ucxgCIAMoCRIQCghwbGF0"
        "Zm9ybRgDIAEoCRI/CgZpbnB1dHMYBCADKAsyLy5pbmZlcmVuY2UuTW9kZWxNZXRhZGF0YVJlc3BvbnNlLlRlbnNv"
        "ck1ldGFkYXRhEkAKB291dHB1dHMYBSADKAsyLy5pbmZlcmVuY2UuTW9kZWxNZXRhZGF0YVJlc3BvbnNlLlRlbnNv"
        "ck1ldGFkYXRhGj8KDlRlbnNvck1ldGFkYXRhEgwKBG5hbWUYASABKAkSEAoIZGF0YXR5cGUYAiABKAkSDQoFc2hh"
        "cGUYAyADKAMimQEKDkluZmVyUGFyYW1ldGVyEhQKCmJvb2xfcGFyYW0YASABKAhIABIVCgtpbnQ2NF9wYXJhbRgC"
        "IAEoA0gAEhYKDHN0cmluZ19wYXJhbRgDIAEoCUgAEhYKDGRvdWJsZV9wYXJhbRgEIAEoAUgAEhYKDHVpbnQ2NF9w"
        "YXJhbRgFIAEoBEgAQhIKEHBhcmFtZXRlcl9jaG9pY2Ui0AEKE0luZmVyVGVuc29yQ29udGVudHMSFQoNYm9vbF9j"
        "b250ZW50cxgBIAMoCBIUCgxpbnRfY29udGVudHMYAiADKAUSFgoOaW50NjRfY29udGVudHMYAyADKAMSFQoNdWlu"
        "dF9jb250ZW50cxgEIAMoDRIXCg91aW50NjRfY29udGVudHMYBSADKAQSFQoNZnAzMl9jb250ZW50cxgGIAMoAhIV"
        "Cg1mcDY0X2NvbnRlbnRzGAcgAygBEhYKDmJ5dGVzX2NvbnRlbnRzGAggAygMIu4GChFNb2RlbEluZmVyUmVxdWVz"
        "dBISCgptb2RlbF9uYW1lGAEgASgJEhUKDW1vZGVsX3ZlcnNpb24YAiABKAkSCgoCaWQYAyABKAkSQAoKcGFyYW1l"
        "dGVycxgEIAMoCzIsLmluZmVyZW5jZS5Nb2RlbEluZmVyUmVxdWVzdC5QYXJhbWV0ZXJzRW50cnkSPQoGaW5wdXRz"
        "GAUgAygLMi0uaW5mZXJlbmNlLk1vZGVsSW5mZXJSZXF1ZXN0LkluZmVySW5wdXRUZW5zb3ISSAoHb3V0cHV0cxgG"
        "IAMoCzI3LmluZmVyZW5jZS5Nb2RlbEluZmVyUmVxdWVzdC5JbmZlclJlcXVlc3RlZE91dHB1dFRlbnNvchIaChJy"
        "YXdfaW5wdXRfY29udGVudHMYByADKAwalAIKEEluZmVySW5wdXRUZW5zb3ISDAoEbmFtZRgBIAEoCRIQCghkYXRh"
        "dHlwZRgCIAEoCRINCgVzaGFwZRgDIAMoAxJRCgpwYXJhbWV0ZXJzGAQgAygLMj0uaW5mZXJlbmNlLk1vZGVsSW5m"
        "ZXJSZXF1ZXN0LkluZmVySW5wdXRUZW5zb3IuUGFyYW1ldGVyc0VudHJ5EjAKCGNvbnRlbnRzGAUgASgLMh4uaW5m"
        "ZXJlbmNlLkluZmVyVGVuc29yQ29udGVudHMaTAoPUGFyYW1ldGVyc0VudHJ5EgsKA2tleRgBIAEoCRIoCgV2YWx1"
        "ZRgCIAEoCzIZLmluZmVyZW5jZS5JbmZlclBhcmFtZXRlcjoCOAEa1QEKGkluZmVyUmVxdWVzdGVkT3V0cHV0VGVu"
        "c29yEgwKBG5hbWUYASABKAkSWwoKcGFyYW1ldGVycxgCIAMoCzJHLmluZmVyZW5jZS5Nb2RlbEluZmVyUmVxdWVz"
        "dC5JbmZlclJlcXVlc3RlZE91dHB1dFRlbnNvci5QYXJhbWV0ZXJzRW50cnkaTAoPUGFyYW1ldGVyc0VudHJ5EgsK"
        "A2tleRgBIAEoCRIoCgV2YWx1ZRgCIAEoCzIZLmluZmVyZW5jZS5JbmZlclBhcmFtZXRlcjoCOAEaTAoPUGFyYW1l"
        "dGVyc0VudHJ5EgsKA2tleRgBIAEoCRIoCgV2YWx1ZRgCIAEoCzIZLmluZmVyZW5jZS5JbmZlclBhcmFtZXRlcjoC"
        "OAEi1QQKEk1vZGVsSW5mZXJSZXNwb25zZRISCgptb2RlbF9uYW1lGAEgASgJEhUKDW1vZGVsX3ZlcnNpb24YAiAB"
        "KAkSCgoCaWQYAyABKAkSQQoKcGFyYW1ldGVycxgEIAMoCzItLmluZmVyZW5jZS5Nb2RlbEluZmVyUmVzcG9uc2Uu"
        "UGFyYW1ldGVyc0VudHJ5EkAKB291dHB1dHMYBSADKAsyLy5pbmZlcmVuY2UuTW9kZWxJbmZlclJlc3BvbnNlLklu"
        "ZmVyT3V0cHV0VGVuc29yEhsKE3Jhd19vdXRwdXRfY29udGVudHMYBiADKAwalwIKEUluZmVyT3V0cHV0VGVuc29y"
        "EgwKBG5hbWUYASABKAkSEAoIZGF0YXR5cGUYAiABKAkSDQoFc2hhcGUYAyADKAMSUwoKcGFyYW1ldGVycxgEIAMo"
        "CzI/LmluZmVyZW5jZS5Nb2RlbEluZmVyUmVzcG9uc2UuSW5mZXJPdXRwdXRUZW5zb3IuUGFyYW1ldGVyc0VudHJ5"
        "EjAKCGNvbnRlbnRzGAUgASgLMh4uaW5mZXJlbmNlLkluZmVyVGVuc29yQ29udGVudHMaTAoPUGFyYW1ldGVyc0Vu"
        "dHJ5EgsKA2tleRgBIAEoCRIoCgV2YWx1ZRgCIAEoCzIZLmluZmVyZW5jZS5JbmZlclBhcmFtZXRlcjoCOAEaTAoP"
        "UGFyYW1ldGVyc0VudHJ5EgsKA2tleRgBIAEoCRIoCgV2YWx1ZRgCIAEoCzIZLmluZmVyZW5jZS5JbmZlclBhcmFt"
        "ZXRlcjoCOAEiaAoYTW9kZWxTdHJlYW1JbmZlclJlc3BvbnNlEhUKDWVycm9yX21lc3NhZ2UYASABKAkSNQoOaW5m"
        "ZXJfcmVzcG9uc2UYAiABKAsyHS5pbmZlcmVuY2UuTW9kZWxJbmZlclJlc3BvbnNlIjMKEk1vZGVsQ29uZmlnUmVx"
        "dWVzdBIMCgRuYW1lGAEgASgJEg8KB3ZlcnNpb24YAiABKAkiYgoKTW9kZWxJbnB1dBIMCgRuYW1lGAEgASgJEiYK"
        "CWRhdGFfdHlwZRgCIAEoDjITLmluZmVyZW5jZS5EYXRhVHlwZRIMCgRkaW1zGAQgAygDEhAKCG9wdGlvbmFsGAgg"
        "ASgIIlEKC01vZGVsT3V0cHV0EgwKBG5hbWUYASABKAkSJgoJZGF0YV90eXBlGAIgASgOMhMuaW5mZXJlbmNlLkRh"
        "dGFUeXBlEgwKBGRpbXMYAyADKAMiJgoOTW9kZWxQYXJhbWV0ZXISFAoMc3RyaW5nX3ZhbHVlGAEgASgJIq4CCgtN"
        "b2RlbENvbmZpZxIMCgRuYW1lGAEgASgJEhAKCHBsYXRmb3JtGAIgASgJEhYKDm1heF9iYXRjaF9zaXplGAQgASgF"
        "EiQKBWlucHV0GAUgAygLMhUuaW5mZXJlbmNlLk1vZGVsSW5wdXQSJgoGb3V0cHV0GAYgAygLMhYuaW5mZXJlbmNl"
        "Lk1vZGVsT3V0cHV0EjoKCnBhcmFtZXRlcnMYDiADKAsyJi5pbmZlcmVuY2UuTW9kZWxDb25maWcuUGFyYW1ldGVy"
        "c0VudHJ5Eg8KB2JhY2tlbmQYESABKAkaTAoPUGFyYW1ldGVyc0VudHJ5EgsKA2tleRgBIAEoCRIoCgV2YWx1ZRgC"
        "IAEoCzIZLmluZmVyZW5jZS5Nb2RlbFBhcmFtZXRlcjoCOAEiPQoTTW9kZWxDb25maWdSZXNwb25zZRImCgZjb25m"
        "aWcYASABKAsyFi5pbmZlcmVuY2UuTW9kZWxDb25maWciNwoWTW9kZWxTdGF0aXN0aWNzUmVxdWVzdBIMCgRuYW1l"
        "GAEgASgJEg8KB3ZlcnNpb24YAiABKAkiLgoRU3RhdGlzdGljRHVyYXRpb24SDQoFY291bnQYASABKAQSCgoCbnMY"
        "AiABKAQiuQIKD0luZmVyU3RhdGlzdGljcxItCgdzdWNjZXNzGAEgASgLMhwuaW5mZXJlbmNlLlN0YXRpc3RpY0R1"
        "cmF0aW9uEioKBGZhaWwYAiABKAsyHC5pbmZlcmVuY2UuU3RhdGlzdGljRHVyYXRpb24SKwoFcXVldWUYAyABKAsy"
        "HC5pbmZlcmVuY2UuU3RhdGlzdGljRHVyYXRpb24SMwoNY29tcHV0ZV9pbnB1dBgEIAEoCzIcLmluZmVyZW5jZS5T"
        "dGF0aXN0aWNEdXJhdGlvbhIzCg1jb21wdXRlX2luZmVyGAUgASgLMhwuaW5mZXJlbmNlLlN0YXRpc3RpY0R1cmF0"
        "aW9uEjQKDmNvbXB1dGVfb3V0cHV0GAYgASgLMhwuaW5mZXJlbmNlLlN0YXRpc3RpY0R1cmF0aW9uIsoBChRJbmZl"
        "ckJhdGNoU3RhdGlzdGljcxISCgpiYXRjaF9zaXplGAEgASgEEjMKDWNvbXB1dGVfaW5wdXQYAiABKAsyHC5pbmZl"
        "cmVuY2UuU3RhdGlzdGljRHVyYXRpb24SMwoNY29tcHV0ZV9pbmZlchgDIAEoCzIcLmluZmVyZW5jZS5TdGF0aXN0"
        "aWNEdXJhdGlvbhI0Cg5jb21wdXRlX291dHB1dBgEIAEoCzIcLmluZmVyZW5jZS5TdGF0aXN0aWNEdXJhdGlvbiLl"
        "AQoPTW9kZWxTdGF0aXN0aWNzEgwKBG5hbWUYASABKAkSDwoHdmVyc2lvbhgCIAEoCRIWCg5sYXN0X2luZmVyZW5j"
        "ZRgDIAEoBBIXCg9pbmZlcmVuY2VfY291bnQYBCABKAQSFwoPZXhlY3V0aW9uX2NvdW50GAUgASgEEjMKD2luZmVy"
        "ZW5jZV9zdGF0cxgGIAEoCzIaLmluZmVyZW5jZS5JbmZlclN0YXRpc3RpY3MSNAoLYmF0Y2hfc3RhdHMYByADKAsy"
        "Hy5pbmZlcmVuY2UuSW5mZXJCYXRjaFN0YXRpc3RpY3MiSgoXTW9kZWxTdGF0aXN0aWNzUmVzcG9uc2USLwoLbW9k"
        "ZWxfc3RhdHMYASADKAsyGi5pbmZlcmVuY2UuTW9kZWxTdGF0aXN0aWNzIooBChhNb2RlbFJlcG9zaXRvcnlQYXJh"
        "bWV0ZXISFAoKYm9vbF9wYXJhbRgBIAEoCEgAEhUKC2ludDY0X3BhcmFtGAIgASgDSAASFgoMc3RyaW5nX3BhcmFt"
        "GAMgASgJSAASFQoLYnl0ZXNfcGFyYW0YBCABKAxIAEISChBwYXJhbWV0ZXJfY2hvaWNlIkAKFlJlcG9zaXRvcnlJ"
        "bmRleFJlcXVlc3QSFwoPcmVwb3NpdG9yeV9uYW1lGAEgASgJEg0KBXJlYWR5GAIgASgIIqQBChdSZXBvc2l0b3J5"
        "SW5kZXhSZXNwb25zZRI9CgZtb2RlbHMYASADKAsyLS5pbmZlcmVuY2UuUmVwb3NpdG9yeUluZGV4UmVzcG9uc2Uu"
        "TW9kZWxJbmRleBpKCgpNb2RlbEluZGV4EgwKBG5hbWUYASABKAkSDwoHdmVyc2lvbhgCIAEoCRINCgVzdGF0ZRgD"
        "IAEoCRIOCgZyZWFzb24YBCABKAki7AEKGlJlcG9zaXRvcnlNb2RlbExvYWRSZXF1ZXN0EhcKD3JlcG9zaXRvcnlf"
        "bmFtZRgBIAEoCRISCgptb2RlbF9uYW1lGAIgASgJEkkKCnBhcmFtZXRlcnMYAyADKAsyNS5pbmZlcmVuY2UuUmVw"
        "b3NpdG9yeU1vZGVsTG9hZFJlcXVlc3QuUGFyYW1ldGVyc0VudHJ5GlYKD1BhcmFtZXRlcnNFbnRyeRILCgNrZXkY"
        "ASABKAkSMgoFdmFsdWUYAiABKAsyIy5pbmZlcmVuY2UuTW9kZWxSZXBvc2l0b3J5UGFyYW1ldGVyOgI4ASIdChtS"
        "ZXBvc2l0b3J5TW9kZWxMb2FkUmVzcG9uc2Ui8AEKHFJlcG9zaXRvcnlNb2RlbFVubG9hZFJlcXVlc3QSFwoPcmVw"
        "b3NpdG9yeV9uYW1lGAEgASgJEhIKCm1vZGVsX25hbWUYAiABKAkSSwoKcGFyYW1ldGVycxgDIAMoCzI3LmluZmVy"
        "ZW5jZS5SZXBvc2l0b3J5TW9kZWxVbmxvYWRSZXF1ZXN0LlBhcmFtZXRlcnNFbnRyeRpWCg9QYXJhbWV0ZXJzRW50"
        "cnkSCwoDa2V5GAEgASgJEjIKBXZhbHVlGAIgASgLMiMuaW5mZXJlbmNlLk1vZGVsUmVwb3NpdG9yeVBhcmFtZXRl"
        "cjoCOAEiHwodUmVwb3NpdG9yeU1vZGVsVW5sb2FkUmVzcG9uc2Uq+gEKCERhdGFUeXBlEhAKDFRZUEVfSU5WQUxJ"
        "RBAAEg0KCVRZUEVfQk9PTBABEg4KClRZUEVfVUlOVDgQAhIPCgtUWVBFX1VJTlQxNhADEg8KC1RZUEVfVUlOVDMy"
        "EAQSDwoLVFlQRV9VSU5UNjQQBRINCglUWVBFX0lOVDgQBhIOCgpUWVBFX0lOVDE2EAcSDgoKVFlQRV9JTlQzMhAI"
        "Eg4KClRZUEVfSU5UNjQQCRINCglUWVBFX0ZQMTYQChINCglUWVBFX0ZQMzIQCxINCglUWVBFX0ZQNjQQDBIPCgtU"
        "WVBFX1NUUklORxANEg0KCVRZUEVfQkYxNhAOMrcIChRHUlBDSW5mZXJlbmNlU2VydmljZRJLCgpTZXJ2ZXJMaXZl"
        "EhwuaW5mZXJlbmNlLlNlcnZlckxpdmVSZXF1ZXN0Gh0uaW5mZXJlbmNlLlNlcnZlckxpdmVSZXNwb25zZSIAEk4K"
        "C1NlcnZlclJlYWR5Eh0uaW5mZXJlbmNlLlNlcnZlclJlYWR5UmVxdWVzdBoeLmluZmVyZW5jZS5TZXJ2ZXJSZWFk"
        "eVJlc3BvbnNlIgASSwoKTW9kZWxSZWFkeRIcLmluZmVyZW5jZS5Nb2RlbFJlYWR5UmVxdWVzdBodLmluZmVyZW5j"
        "ZS5Nb2RlbFJlYWR5UmVzcG9uc2UiABJXCg5TZXJ2ZXJNZXRhZGF0YRIgLmluZmVyZW5jZS5TZXJ2ZXJNZXRhZGF0"
        "YVJlcXVlc3QaIS5pbmZlcmVuY2UuU2VydmVyTWV0YWRhdGFSZXNwb25zZSIAElQKDU1vZGVsTWV0YWRhdGESHy5p"
        "bmZlcmVuY2UuTW9kZWxNZXRhZGF0YVJlcXVlc3QaIC5pbmZlcmVuY2UuTW9kZWxNZXRhZGF0YVJlc3BvbnNlIgAS"
        "SwoKTW9kZWxJbmZlchIcLmluZmVyZW5jZS5Nb2RlbEluZmVyUmVxdWVzdBodLmluZmVyZW5jZS5Nb2RlbEluZmVy"
        "UmVzcG9uc2UiABJbChBNb2RlbFN0cmVhbUluZmVyEhwuaW5mZXJlbmNlLk1vZGVsSW5mZXJSZXF1ZXN0GiMuaW5m"
        "ZXJlbmNlLk1vZGVsU3RyZWFtSW5mZXJSZXNwb25zZSIAKAEwARJOCgtNb2RlbENvbmZpZxIdLmluZmVyZW5jZS5N"
        "b2RlbENvbmZpZ1JlcXVlc3QaHi5pbmZlcmVuY2UuTW9kZWxDb25maWdSZXNwb25zZSIAEloKD01vZGVsU3RhdGlz"
        "dGljcxIhLmluZmVyZW5jZS5Nb2RlbFN0YXRpc3RpY3NSZXF1ZXN0GiIuaW5mZXJlbmNlLk1vZGVsU3RhdGlzdGlj"
        "c1Jlc3BvbnNlIgASWgoPUmVwb3NpdG9yeUluZGV4EiEuaW5mZXJlbmNlLlJlcG9zaXRvcnlJbmRleFJlcXVlc3Qa"
        "Ii5pbmZlcmVuY2UuUmVwb3NpdG9yeUluZGV4UmVzcG9uc2UiABJmChNSZXBvc2l0b3J5TW9kZWxMb2FkEiUuaW5m"
        "ZXJlbmNlLlJlcG9zaXRvcnlNb2RlbExvYWRSZXF1ZXN0GiYuaW5mZXJlbmNlLlJlcG9zaXRvcnlNb2RlbExvYWRS"
        "ZXNwb25zZSIAEmwKFVJlcG9zaXRvcnlNb2RlbFVubG9hZBInLmluZmVyZW5jZS5SZXBvc2l0b3J5TW9kZWxVbmxv"
        "YWRSZXF1ZXN0GiguaW5mZXJlbmNlLlJlcG9zaXRvcnlNb2RlbFVubG9hZFJlc3BvbnNlIgBiBnByb3RvMw=="
    )
)

_CLASSES = []  # The pool itself forgets those that nobody holds, and makes them anew.


def _at_home(descriptor, path):
    """Its class, which says where it lives: picklers would copy it by its parts otherwise."""
    message = GetMessageClass(descriptor)
    _CLASSES.append(message)
    message.__module__, message.__qualname__ = __name__, path
    for nested in descriptor.nested_types:
        if not nested.GetOptions().map_entry:
            _at_home(nested, f"{path}.{nested.name}")
    return message


DESCRIPTOR = _POOL.FindFileByName("open_inference.proto")
for _name, _descriptor in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = _at_home(_descriptor, _name)
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals().update((_value.name, _value.number) for _value in _enum.values)
